"""The entry of a JobSet's containers: manifests name it, and images have it, so it stays at this place."""
