"""What is measured and told about a running process: metrics, traces, logs."""
