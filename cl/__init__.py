"""Efficient contrastive pretraining: any framework with any loss, on the same data, with the same evaluation."""
