"""Work that takes hours: embedding many images, finding near copies."""
