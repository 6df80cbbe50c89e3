"""The layouts of a model folder: what each tensor is called in transformers' BERT and ModernBERT, and in our own.

Our names stand on the left, with ``*`` for the number of a layer; those of the file on the right, all without the
``.weight`` or ``.bias`` at the end. Several names on the right are the parts of one of our tensors, by its first axis.
"""

import re
from dataclasses import dataclass

from bertlab.models.config import BertConfig

_BERT = {
    "bert.embeddings.tokens": ["bert.embeddings.word_embeddings"],
    "bert.embeddings.types": ["bert.embeddings.token_type_embeddings"],
    "bert.embeddings.norm": ["bert.embeddings.LayerNorm"],
    "bert.position.table": ["bert.embeddings.position_embeddings"],
    "bert.encoder.layers.*.attention.qkv": [
        "bert.encoder.layer.*.attention.self.query",
        "bert.encoder.layer.*.attention.self.key",
        "bert.encoder.layer.*.attention.self.value",
    ],
    "bert.encoder.layers.*.attention.out": ["bert.encoder.layer.*.attention.output.dense"],
    "bert.encoder.layers.*.attention.norm": ["bert.encoder.layer.*.attention.output.LayerNorm"],
    "bert.encoder.layers.*.feedforward.up": ["bert.encoder.layer.*.intermediate.dense"],
    "bert.encoder.layers.*.feedforward.down": ["bert.encoder.layer.*.output.dense"],
    "bert.encoder.layers.*.feedforward.norm": ["bert.encoder.layer.*.output.LayerNorm"],
    "bert.pooler.dense": ["bert.pooler.dense"],
    "head.dense": ["cls.predictions.transform.dense"],
    "head.norm": ["cls.predictions.transform.LayerNorm"],
    "decoder_bias": ["cls.predictions.bias"],
    "classifier": ["classifier"],
}

_MODERNBERT = {
    "bert.embeddings.tokens": ["model.embeddings.tok_embeddings"],
    "bert.embeddings.norm": ["model.embeddings.norm"],
    "bert.encoder.layers.*.attention.qkv": ["model.layers.*.attn.Wqkv"],
    "bert.encoder.layers.*.attention.out": ["model.layers.*.attn.Wo"],
    "bert.encoder.layers.*.attention.norm": ["model.layers.*.attn_norm"],
    "bert.encoder.layers.*.feedforward.up": ["model.layers.*.mlp.Wi"],
    "bert.encoder.layers.*.feedforward.down": ["model.layers.*.mlp.Wo"],
    "bert.encoder.layers.*.feedforward.norm": ["model.layers.*.mlp_norm"],
    "bert.encoder.final_norm": ["model.final_norm"],
    "head.dense": ["head.dense"],
    "head.norm": ["head.norm"],
    "decoder_bias": ["decoder.bias"],
    "classifier": ["classifier"],
}


@dataclass(frozen=True)
class Layout:
    """How a model is laid out in a folder.

    Attributes:
        model_type: ``bert`` or ``modernbert``, as transformers calls them, or ``bertlab`` for our own layout.
        prefix: what the encoder's tensors begin with in a model that has a head.
        class_prefix: what stands before ``BertForMaskedLM`` and its like in ``architectures``.
        names: our names and the file's; None when they are the same.
        requires: what a config must say to fit, by field.
    """

    model_type: str
    prefix: str
    class_prefix: str
    names: dict[str, list[str]] | None
    requires: dict[str, object]

    def file_names(self, name: str) -> list[str]:
        """The tensors of the file that make up our tensor ``name`` (one that begins with ``bert.``, or a head's)."""
        if self.names is None:
            return [name]
        if name in self.names:
            return self.names[name]
        module, _, kind = name.rpartition(".")
        layer = re.search(r"\d+", module)
        targets = self.names[re.sub(r"\d+", "*", module)]
        return [f"{target.replace('*', layer.group() if layer else '')}.{kind}" for target in targets]

    def misfits(self, config: BertConfig) -> list[str]:
        """What keeps ``config`` out of this layout, one ``model.field=value (must be ...)`` each."""
        problems = [
            f"model.{field}={getattr(config, field)} (must be {wanted})"
            for field, wanted in self.requires.items()
            if getattr(config, field) != wanted
        ]
        if self.model_type == "bert" and config.type_vocab_size < 1:
            problems.append(f"model.type_vocab_size={config.type_vocab_size} (must be at least 1)")
        return problems


BERT = Layout(
    model_type="bert",
    prefix="bert.",
    class_prefix="",
    names=_BERT,
    requires={"norm": "post", "position": "learned", "feedforward": "plain", "bias": True, "pooler": True},
)
MODERNBERT = Layout(
    model_type="modernbert",
    prefix="model.",
    class_prefix="Modern",
    names=_MODERNBERT,
    requires={"norm": "pre", "position": "rope", "feedforward": "gated", "pooler": False, "type_vocab_size": 0},
)
BERTLAB = Layout(model_type="bertlab", prefix="bert.", class_prefix="", names=None, requires={})

LAYOUTS = {layout.model_type: layout for layout in (BERT, MODERNBERT, BERTLAB)}


def layout_of(config: BertConfig) -> str | None:
    """Which of transformers' layouts a model of this config has: ``bert``, ``modernbert``, or None for neither."""
    return next((layout.model_type for layout in (BERT, MODERNBERT) if not layout.misfits(config)), None)


def explain_misfit(config: BertConfig) -> str:
    """Why transformers has no architecture for ``config``, in one line."""
    differences = "; ".join(
        f"{family} differs in {', '.join(layout.misfits(config))}"
        for family, layout in (("BERT (model=bert)", BERT), ("ModernBERT (model=modern)", MODERNBERT))
    )
    return f"transformers has no architecture for this model, but bertlab.load_pretrained opens it: {differences}"
