"""Classifiers on the features of few labelled images: heads, files, fine-tuning."""
