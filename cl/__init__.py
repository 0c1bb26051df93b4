"""Efficient contrastive pretraining: any method with any loss, on the same data, with the same evaluation."""
