"""What every part builds on: one process or many, the device, strict configuration, files of tensors."""
