"""What the stages and commands of `pipeline` share."""
