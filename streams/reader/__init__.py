"""One reader for files of rows, of every format and compressed or not, and for folders of images and saved data sets."""
