"""ONNX files: read, checked, and rebuilt as a torch module."""
