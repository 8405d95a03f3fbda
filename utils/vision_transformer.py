"""The whole model: an image in, one logit for each class out (chapter 07)."""

from torch import Tensor, nn

from utils.embedding import PatchEmbedding
from utils.encoder import Encoder
from utils.validation import Size, check_positive


class VisionTransformer(nn.Module):
    """Embed the patches, encode the tokens, read the class from the class token.

    Args:
        image_size, patch_size: side in pixels, or (height, width).
        in_channels: channels of the images, c.
        num_classes: number of classes, k.
        embed_dim, num_heads, mlp_dim, dropout, activation, norm_eps: see `EncoderBlock`.
        num_layers: number of blocks.

    Shape:
        images  (b, c, H, W)
        result  (b, k)

    Raises: as `PatchEmbedding` and `Encoder`.
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
        sizes = (num_layers, embed_dim, num_heads, mlp_dim, dropout)
        self.encoder = Encoder(*sizes, activation=activation, norm_eps=norm_eps)
        self.head = nn.Linear(embed_dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.encoder(self.embedding(images))  # (b, n + 1, e)
        return self.head(tokens[:, 0])
