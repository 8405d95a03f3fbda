"""Finished code of the course: each file holds what one or two chapters build.

Read the files in this order; none knows a file that comes later:
shapes, images, modes, checkpoints, text, embedding, positions, masking, scenes, attention, grammar,
boxes, encoder, seeing, decoder, modern_decoder, vision_transformer, language_model, detection,
training, generation, pretrained, small_models, draw.

All of it, and every chapter, computes on one thread. The models are small, and threads that wait
for each other cost more than they help: the measurement of chapter 06 took 3.5 s on one thread and
17 to 52 s on two while the machine was busy. It also makes the numbers the same wherever the
processor is: two threads add up in another order. Who wants more, calls `torch.set_num_threads`
after the import.
"""

import torch

torch.set_num_threads(1)
