"""Pretraining: a method with a loss, and measurements during training."""
