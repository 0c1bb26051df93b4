"""What the commands write: tables, classes of images, pages of pictures."""
