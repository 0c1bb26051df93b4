"""detectron2's detectors and evaluators; `settings` alone needs no detectron2."""
