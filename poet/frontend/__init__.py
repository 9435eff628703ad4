"""Modules and ONNX files to training graphs."""

from poet.files.cache_folder import name_temporary_folder

name_temporary_folder()
