"""Look at a job before it runs (`podrun inspect`), from shapes and the compiled step alone, so that no memory is needed."""
