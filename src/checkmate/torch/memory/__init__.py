"""What a device holds: tensors and storages of a step, of training besides it, and of the script."""
