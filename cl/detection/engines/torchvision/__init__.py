"""torchvision's detectors."""
