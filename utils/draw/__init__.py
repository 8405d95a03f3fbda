"""The pictures that the chapters share: one line draws one, and all of them look alike.

Every picture brings words for who cannot see it; what can be clicked needs no network and no
kernel. The files: style, matrices, pictures, curves, explorer (with its script and its look),
product, looks (with attention.js and attention.css), measured, pieces.
"""

from utils.draw.curves import show_bars, show_lines
from utils.draw.explorer import Click, Frame, Labels, explorer
from utils.draw.looks import Look, explore_attention
from utils.draw.matrices import show_matrices, show_tensor
from utils.draw.measured import measured_here, show_measured, show_texts
from utils.draw.pictures import show_attention, show_boxes, show_images, show_patches
from utils.draw.pieces import show_pieces
from utils.draw.product import explore_product
from utils.draw.style import COLORS, HEAT, LINES, MARKERS, WIDTH, show_figure, use_course_style

__all__ = [
    "COLORS",
    "HEAT",
    "LINES",
    "MARKERS",
    "WIDTH",
    "Click",
    "Frame",
    "Labels",
    "Look",
    "explore_attention",
    "explore_product",
    "explorer",
    "measured_here",
    "show_attention",
    "show_bars",
    "show_boxes",
    "show_figure",
    "show_images",
    "show_lines",
    "show_matrices",
    "show_measured",
    "show_patches",
    "show_pieces",
    "show_tensor",
    "show_texts",
    "use_course_style",
]
