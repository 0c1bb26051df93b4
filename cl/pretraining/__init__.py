"""What pretraining trains and watches: a method with a loss."""
