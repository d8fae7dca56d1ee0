"""Templates of jobs: a commented train.yaml for each kind, which `podrun new` writes."""
