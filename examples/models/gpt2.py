"""GPT-2 in Flax: Radford et al., Language Models are Unsupervised Multitask Learners (OpenAI, 2019)."""

from dataclasses import dataclass

import flax.linen as nn
import jax.numpy as jnp
import optax


@dataclass(frozen=True)
class Config:
    """These are the sizes of a GPT-2, and how it is computed.

    Attributes:
      layers, width, heads: of the transformer.
      vocabulary: how many tokens there are.
      context: how many tokens the model looks at, at most.
      dropout: the share of activations that training drops.
      scan: the layers are one loop over stacked parameters, which compiles faster, instead of one after the other.
      remat: a layer's activations are computed again for its gradient instead of kept.
    """

    layers: int
    width: int
    heads: int
    vocabulary: int = 50257
    context: int = 1024
    dropout: float = 0.1
    scan: bool = False
    remat: bool = False


SMALL = Config(layers=12, width=768, heads=12)
MEDIUM = Config(layers=24, width=1024, heads=16)
LARGE = Config(layers=36, width=1280, heads=20)
XL = Config(layers=48, width=1600, heads=25)
TINY = Config(layers=6, width=32, heads=2, vocabulary=256, context=64)  # its tokens are bytes


def _dense(features, deviation=0.02):
    return nn.Dense(features, kernel_init=nn.initializers.normal(deviation))


class Layer(nn.Module):
    config: Config
    train: bool

    def setup(self):
        width = self.config.width
        added = 0.02 / (2 * self.config.layers) ** 0.5  # smaller the more is added up: twice in each layer
        self.norm_1, self.norm_2 = nn.LayerNorm(epsilon=1e-5), nn.LayerNorm(epsilon=1e-5)
        self.queries_keys_values, self.attended = _dense(3 * width), _dense(width, added)
        self.wide, self.narrow = _dense(4 * width), _dense(width, added)
        self.drop = nn.Dropout(self.config.dropout, deterministic=not self.train)

    def attention(self, x):
        count, length, width = x.shape
        heads = self.queries_keys_values(x).reshape(count, length, 3, self.config.heads, -1)
        queries, keys, values = jnp.moveaxis(heads, 2, 0)
        scores = jnp.einsum("nqhd,nkhd->nhqk", queries, keys) / queries.shape[-1] ** 0.5
        seen = jnp.tril(jnp.ones((1, 1, length, length), bool))
        weights = self.drop(nn.softmax(jnp.where(seen, scores, jnp.finfo(scores.dtype).min)))
        return self.attended(jnp.einsum("nhqk,nkhd->nqhd", weights, values).reshape(count, length, width))

    def __call__(self, x):  # f32[n, length, width] -> the same, and nothing to stack: as nn.scan wants it
        x = x + self.drop(self.attention(self.norm_1(x)))
        return x + self.drop(self.narrow(nn.gelu(self.wide(self.norm_2(x))))), None


class GPT2(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, tokens, train=False):  # i32[n, length] -> f32[n, length, vocabulary]
        config = self.config
        embedding = nn.Embed(config.vocabulary, config.width, embedding_init=nn.initializers.normal(0.02))
        positions = self.param("positions", nn.initializers.normal(0.01), (config.context, config.width))
        x = embedding(tokens) + positions[None, : tokens.shape[1]]
        x = nn.Dropout(config.dropout, deterministic=not train)(x)
        # In a loop XLA keeps the two computations apart anyway; a barrier would only cost time.
        layer = nn.remat(Layer, prevent_cse=not config.scan) if config.remat else Layer
        if config.scan:
            split = {"params": True, "dropout": True}
            layers = nn.scan(layer, variable_axes={"params": 0}, split_rngs=split, length=config.layers)
            x, _ = layers(config, train, name="layers")(x)
        else:
            for number in range(config.layers):
                x, _ = layer(config, train, name=f"layer_{number}")(x)
        return embedding.attend(nn.LayerNorm(epsilon=1e-5)(x))  # the embedding is tied to the output


def loss_of(model):
    """`loss(params, batch) -> (loss, aux)`, as jax.value_and_grad(..., has_aux=True) takes it.

    The batch has "tokens", i32[n, length + 1], each of which is predicted by those before it. Activations are dropped
    if it has a "key".
    """

    def loss(params, batch):
        tokens, key = batch["tokens"], batch.get("key")
        rngs = None if key is None else {"dropout": key}
        logits = model.apply({"params": params}, tokens[:, :-1], train=key is not None, rngs=rngs)
        logits = logits.astype(jnp.float32)  # the loss has more bits than parameters of bfloat16
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean(), {"accuracy": jnp.mean(jnp.argmax(logits, axis=-1) == tokens[:, 1:])}

    return loss
