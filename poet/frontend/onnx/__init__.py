"""ONNX files: read, checked, and rebuilt as a torch module."""

from poet.util.extras import check_installed

check_installed("onnx")
