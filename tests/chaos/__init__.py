"""What befalls a training on a real cluster, done to one on purpose."""
