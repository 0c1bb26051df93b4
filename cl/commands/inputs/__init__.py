"""What the commands read: images, tables of labels, files of features."""
