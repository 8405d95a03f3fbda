"""Finished code of the course: each file holds what one or two chapters build.

Read the files in this order; none knows a file that comes later:
shapes, validation, text, positions, masking, cache, boxes, embedding, attention, encoder, seeing,
decoder, modern_decoder, vision_transformer, language_model, detection, training, generation, hub,
data, draw, renamed.

All of it, and every chapter, computes on one thread. The models are small, and threads that wait
for each other cost more than they help: the measurement of chapter 06 took 3.5 s on one thread and
17 to 52 s on two while the machine was busy. It also makes the numbers the same on every CPU: two
threads add up in another order. If you want more threads, call `torch.set_num_threads` after the
import.
"""

import torch

from utils import renamed

torch.set_num_threads(1)
renamed.install()
