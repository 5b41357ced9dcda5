"""The half of a node that has the tensors; nothing outside it imports torch."""
