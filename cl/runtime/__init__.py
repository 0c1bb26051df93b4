"""What every package builds on: processes, the device, strict configuration, files of tensors."""
