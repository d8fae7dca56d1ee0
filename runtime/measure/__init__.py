"""What the loop measures and writes down: throughput, FLOPs, means of epochs, metrics."""
