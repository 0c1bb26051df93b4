"""Detection transfer: data in VOC and COCO layout, detectors on a pretrained backbone, average precision."""
