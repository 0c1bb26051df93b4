"""Image files, folders and tables of them, read by one rule everywhere."""
