"""Operators that only tests call: the model, the tokenizer, tasks and the optimizer as torch operators, from
libfaultline_testing.so beside the library that is under test."""

import torch

from faultline import library_path

_LIBRARY = library_path().with_name("libfaultline_testing.so")
torch.ops.load_library(str(_LIBRARY))
OPS = torch.ops.faultline_testing
