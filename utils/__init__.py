"""Finished code of the course: each file holds what one or two chapters build.

Read the files in this order; none knows a file that comes later:
shapes, validation, text, positions, masking, cache, boxes, embedding, attention, rotary, encoder,
seeing, decoder, modern_decoder, vision_transformer, language_model, detection, experts,
latent_attention, linear_attention, training, generation, hub, preferences, data, draw, renamed.

All of it, and every chapter, computes on one thread: threads that wait for each other cost small
models more time than they save, and they add up in another order, so numbers would differ between
CPUs. If you want more threads, call `torch.set_num_threads` after the import.
"""

import torch

from utils import renamed

torch.set_num_threads(1)
renamed.install()
