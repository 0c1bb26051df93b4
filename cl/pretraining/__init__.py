"""Pretraining: a method with a loss, and what is measured while it trains."""
