"""ONNX files: read, checked, and rebuilt as a torch module."""

from poet.errors import check_installed

check_installed("onnx")
