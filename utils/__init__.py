"""Finished code of the course: each file holds what one or two chapters build.

Read the files in this order; none knows a file that comes later:
shapes, images, embedding, masking, attention, encoder, vision_transformer, training, draw, clinic.
"""
