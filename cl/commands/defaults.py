"""Values that the functions of the commands and their help on the command line share."""

ENCODER = "models/backbone.safetensors"  # where the pipeline writes it
MATCHES = 10  # images per query of a search
FILES = {"torchvision": ".safetensors", "detectron2": ".pkl", "onnx": ".onnx"}  # formats of an export
TIMM = "timm"  # a folder
