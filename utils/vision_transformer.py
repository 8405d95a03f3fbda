"""The whole model: an image in, one score for each class out (chapter 07)."""

from safetensors.torch import load_file
from torch import Tensor, nn

from utils.embedding import PatchEmbedding, Size
from utils.encoder import Encoder
from utils.images import resource
from utils.shapes import check_positive

# what load_digits_model() and resources/make_digits_model.py build
DIGITS_MODEL = {
    "image_size": 8,
    "patch_size": 2,
    "in_channels": 1,
    "num_classes": 10,
    "embed_dim": 64,
    "num_heads": 4,
    "mlp_dim": 256,
    "num_layers": 2,
}


class VisionTransformer(nn.Module):
    """Embed the patches, encode the tokens, read the class from the class token.

    Args:
        image_size: side of the images in pixels, or (height, width).
        patch_size: side of a patch in pixels, or (height, width).
        in_channels: channels of the images, c.
        num_classes: number of classes, k.
        embed_dim: width of a token, e.
        num_heads: number of heads, h.
        mlp_dim: inner width of the feed-forward, m.
        num_layers: number of blocks.
        dropout: see `EncoderBlock`.
        norm_eps: the number that keeps LayerNorm from dividing by 0.
        activation: see `FeedForward`.

    Shape:
        images  (b, c, H, W)
        result  (b, k)

    Raises:
        ValueError: as `PatchEmbedding` and `Encoder`.

    Source: Dosovitskiy et al. 2021, section 3.1; chapter 07.
    """

    def __init__(
        self,
        *,
        image_size: Size,
        patch_size: Size,
        in_channels: int,
        num_classes: int,
        embed_dim: int,
        num_heads: int,
        mlp_dim: int,
        num_layers: int,
        dropout: float = 0.0,
        norm_eps: float = 1e-5,
        activation: str = "gelu",
    ):
        super().__init__()
        check_positive("VisionTransformer", num_classes=num_classes)
        self.embedding = PatchEmbedding(image_size, patch_size, in_channels, embed_dim)
        self.encoder = Encoder(
            num_layers,
            embed_dim,
            num_heads,
            mlp_dim,
            dropout,
            activation=activation,
            norm_eps=norm_eps,
        )
        self.head = nn.Linear(embed_dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.encoder(self.embedding(images))  # (b, n + 1, e)
        return self.head(tokens[:, 0])


def load_digits_model() -> VisionTransformer:
    """Load the trained digits model that ships with the course, in eval mode.

    It cuts an 8 x 8 digit into 4 x 4 patches of 2 x 2 pixels, so there are 17 tokens.

    Shape:
        images  (b, 1, 8, 8)
        result  (b, 10)

    Raises:
        ValueError: the file of weights is missing.

    Source: resources/make_digits_model.py; chapters 04 and 07.
    """
    model = VisionTransformer(**DIGITS_MODEL)
    model.load_state_dict(load_file(resource("digits_model.safetensors")))
    return model.eval()
