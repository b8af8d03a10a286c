"""What makes records: specs, the training loop and its probes."""
