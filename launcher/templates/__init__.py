"""Jobs to start from: a commented train.yaml for each kind, which `podrun new` writes."""
