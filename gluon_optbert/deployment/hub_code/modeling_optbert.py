"""BERT with widths of its own in every layer, for Transformers 4.57 and 5.

A layer has `a` heads with keys of width `k` and values of width `v`, and `f` filters; with f = 0 it has no
intermediate block. The embedding may have a width of its own and a projection to the hidden size. Everything
else is BERT's."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput, BertPooler

Tensor = torch.Tensor


class OptBertConfig(BertConfig):
    """The widths of a network, layer by layer.

    Parameters
    ----------
    layer_widths : list of dict
        For each layer its `a`, `k`, `v` and `f`.
    embedding_size : int, optional
        The width of a factorised embedding; None if the embedding has the hidden size.
    num_hidden_layers, num_attention_heads, intermediate_size : int
        By the layers, whatever is given: their number, and the largest widths, for programs that want one
        number.

    The other fields are those of ``BertConfig``.
    """

    model_type = 'optbert'

    def __init__(self, layer_widths=(), embedding_size=None, **others):
        others['num_hidden_layers'] = len(layer_widths)
        for name, letter in (('num_attention_heads', 'a'), ('intermediate_size', 'f')):
            others[name] = max((widths[letter] for widths in layer_widths), default=0)
        super().__init__(**others)
        self.layer_widths = [dict(widths) for widths in layer_widths]
        self.embedding_size = embedding_size


class OptBertEmbeddings(nn.Module):
    """Token, position and segment embeddings, shape (batch, length, hidden size)."""

    def __init__(self, config: OptBertConfig):
        super().__init__()
        width = config.embedding_size or config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.projection = nn.Linear(width, config.hidden_size) if config.embedding_size else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, words: Tensor, token_type_ids: Tensor, position_ids: Tensor) -> Tensor:
        embedded = words + self.token_type_embeddings(token_type_ids) + self.position_embeddings(position_ids)
        embedded = self.dropout(self.LayerNorm(embedded))
        return embedded if self.projection is None else self.projection(embedded)


class OptBertSelfAttention(nn.Module):
    """The heads of a layer: (batch, length, hidden size) to (batch, length, a * v)."""

    def __init__(self, config: OptBertConfig, widths: dict):
        super().__init__()
        self.heads, self.key_width, self.value_width = widths['a'], widths['k'], widths['v']
        self.query = nn.Linear(config.hidden_size, self.heads * self.key_width)
        self.key = nn.Linear(config.hidden_size, self.heads * self.key_width)
        self.value = nn.Linear(config.hidden_size, self.heads * self.value_width)
        self.dropout_rate = config.attention_probs_dropout_prob

    def fused(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        """The context by PyTorch's fused attention, shape (batch, a, length, v).

        Its fast kernels want keys and values of one width. The narrower ones get columns of zeros, which
        change no score.
        """
        apart = self.value_width - self.key_width
        if apart > 0:
            query, key = (functional.pad(part, (0, apart)) for part in (query, key))
        elif apart < 0:
            value = functional.pad(value, (0, -apart))
        context = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=self.key_width**-0.5
        )
        return context[..., : self.value_width]

    def split(self, states: Tensor, width: int) -> Tensor:
        """(batch, length, a * width) to (batch, a, length, width)."""
        return states.unflatten(-1, (self.heads, width)).transpose(1, 2)

    def forward(self, states: Tensor, mask: Tensor | None, explicit: bool) -> tuple[Tensor, Tensor | None]:
        query = self.split(self.query(states), self.key_width)
        key = self.split(self.key(states), self.key_width)
        value = self.split(self.value(states), self.value_width)
        dropout = self.dropout_rate if self.training else 0.0
        probabilities = None
        if explicit:
            scores = query @ key.transpose(-1, -2) * self.key_width**-0.5
            if mask is not None:
                scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            probabilities = functional.softmax(scores, dim=-1)
            context = functional.dropout(probabilities, dropout) @ value
        else:
            context = self.fused(query, key, value, mask, dropout)
        return context.transpose(1, 2).flatten(2), probabilities


class OptBertOutput(nn.Module):
    """Output of a block into the stream: a dense layer, the skip connection and a LayerNorm."""

    def __init__(self, config: OptBertConfig, width: int):
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, states: Tensor, stream: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(states)) + stream)


class OptBertAttention(nn.Module):
    """The attention block of a layer; the names are those of BERT's checkpoints."""

    def __init__(self, config: OptBertConfig, widths: dict):
        super().__init__()
        self.self = OptBertSelfAttention(config, widths)
        self.output = OptBertOutput(config, widths['a'] * widths['v'])

    def forward(self, stream: Tensor, mask: Tensor | None, explicit: bool) -> tuple[Tensor, Tensor | None]:
        context, probabilities = self.self(stream, mask, explicit)
        return self.output(context, stream), probabilities


class OptBertIntermediate(nn.Module):
    """The filters of a layer."""

    def __init__(self, config: OptBertConfig, filters: int):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, filters)

    def forward(self, states: Tensor) -> Tensor:
        return functional.gelu(self.dense(states))


class OptBertLayer(nn.Module):
    """One layer: attention and, unless f = 0, the intermediate block."""

    def __init__(self, config: OptBertConfig, widths: dict):
        super().__init__()
        self.attention = OptBertAttention(config, widths)
        self.intermediate = OptBertIntermediate(config, widths['f']) if widths['f'] else None
        self.output = OptBertOutput(config, widths['f']) if widths['f'] else None

    def forward(self, stream: Tensor, mask: Tensor | None, explicit: bool) -> tuple[Tensor, Tensor | None]:
        stream, probabilities = self.attention(stream, mask, explicit)
        if self.intermediate is not None:
            stream = self.output(self.intermediate(stream), stream)
        return stream, probabilities


class OptBertEncoder(nn.Module):
    """All layers; returns the states before each layer and after the last one, and the probabilities."""

    def __init__(self, config: OptBertConfig):
        super().__init__()
        self.layer = nn.ModuleList(OptBertLayer(config, widths) for widths in config.layer_widths)

    def forward(
        self, stream: Tensor, mask: Tensor | None, explicit: bool
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        states, attentions = [stream], []
        for layer in self.layer:
            stream, probabilities = layer(stream, mask, explicit)
            states.append(stream)
            attentions.append(probabilities)
        return states, attentions


class OptBertPreTrainedModel(PreTrainedModel):
    """Base of all networks of this file."""

    config_class = OptBertConfig
    base_model_prefix = 'bert'
    accepts_loss_kwargs = False  # Trainer divides the loss of accumulated batches itself
    _supports_sdpa = True
    _no_split_modules = ['OptBertLayer']

    def _init_weights(self, module: nn.Module) -> None:
        """Draw the weights that a checkpoint lacks, such as those of a new head."""
        super()._init_weights(module)
        if isinstance(module, OptBertPredictions):
            nn.init.zeros_(module.bias)


def attended(mask: Tensor | None) -> Tensor | None:
    """A mask of 1 for tokens and 0 for padding, shape (batch, length) or (batch, length, length), as truth
    values that fit attention scores of shape (batch, a, length, length). A mask of four sides stays.
    """
    if mask is None:
        return None
    if mask.dim() == 4:
        return mask if mask.dtype == torch.bool else mask >= 0  # an additive one
    mask = mask.to(torch.bool)
    return mask[:, None, None, :] if mask.dim() == 2 else mask[:, None]


class OptBertModel(OptBertPreTrainedModel):
    """Encoder and pooler."""

    def __init__(self, config: OptBertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = OptBertEmbeddings(config)
        self.encoder = OptBertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding of tokens."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Put another embedding of tokens in its place."""
        self.embeddings.word_embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> tuple | BaseModelOutputWithPooling:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError('give either input_ids or inputs_embeds')
        config = self.config
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        if output_hidden_states is None:
            output_hidden_states = config.output_hidden_states
        words = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        length, positions = words.shape[1], config.max_position_embeddings
        if position_ids is None:
            if length > positions:
                raise ValueError(f'{length} tokens, and the network has {positions} positions')
            position_ids = torch.arange(length, device=words.device)[None]
        if token_type_ids is None:
            token_type_ids = torch.zeros(words.shape[:2], dtype=torch.long, device=words.device)
        stream = self.embeddings(words, token_type_ids, position_ids)
        explicit = output_attentions or config._attn_implementation == 'eager'
        states, attentions = self.encoder(stream, attended(attention_mask), explicit)
        outputs = BaseModelOutputWithPooling(
            last_hidden_state=states[-1],
            pooler_output=None if self.pooler is None else self.pooler(states[-1]),
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )
        return given(outputs, return_dict, config)


def given(outputs: Any, return_dict: bool | None, config: OptBertConfig) -> Any:
    """Outputs by name, or as a tuple where the caller or the configuration wants one."""
    if return_dict is None:
        return_dict = config.return_dict and not getattr(config, 'torchscript', False)
    return outputs if return_dict else outputs.to_tuple()


class OptBertPredictions(nn.Module):
    """The MLM head: scores over the vocabulary, from the embedding of tokens.

    Shapes (batch, length, hidden size) and (vocabulary, width) to (batch, length, vocabulary).
    """

    def __init__(self, config: OptBertConfig):
        super().__init__()
        width = config.embedding_size or config.hidden_size
        self.transform = nn.Module()
        self.transform.dense = nn.Linear(config.hidden_size, width)
        self.transform.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, states: Tensor, words: Tensor) -> Tensor:
        states = self.transform.LayerNorm(functional.gelu(self.transform.dense(states)))
        return functional.linear(states, words, self.bias)


class OptBertHeads(nn.Module):
    """The heads of pre-training, or that of MLM alone; the names are those of BERT's checkpoints."""

    def __init__(self, config: OptBertConfig, *, next_sentence: bool):
        super().__init__()
        self.predictions = OptBertPredictions(config)
        self.seq_relationship = nn.Linear(config.hidden_size, 2) if next_sentence else None


def token_loss(scores: Tensor, labels: Tensor | None) -> Tensor | None:
    """The mean loss of the tokens whose label is not -100."""
    return None if labels is None else functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


class _Headed(OptBertPreTrainedModel):
    """A network with a head on the encoder.

    Its class says what `forward` returns, and whether the head reads the pooled output. `add_head` makes the
    head, and `scored` gives its outputs from those of the encoder and the labels.
    """

    outputs_class: type
    reads_pooled = False

    def __init__(self, config: OptBertConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.bert = OptBertModel(config, add_pooling_layer=self.reads_pooled)
        self.add_head(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **more: bool | None,
    ) -> Any:
        inputs = input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds
        return self.headed(inputs, return_dict, more, labels)

    def headed(self, inputs: tuple, return_dict: bool | None, more: dict, *labels: Tensor | None) -> Any:
        """The outputs, as `forward` returns them."""
        inner = self.bert(*inputs, return_dict=True, **more)
        outputs = self.outputs_class(
            **self.scored(inner, *labels), hidden_states=inner.hidden_states, attentions=inner.attentions
        )
        return given(outputs, return_dict, self.config)


class _Scoring(_Headed):
    """A network with the MLM head, whose last matrix is the embedding of tokens."""

    def add_head(self, config: OptBertConfig) -> None:
        self.cls = OptBertHeads(config, next_sentence=self.reads_pooled)

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *words: Any, **more: Any) -> Any:
        """As in Transformers; the bias of the scores grows or shrinks with the embedding."""
        embedding = super().resize_token_embeddings(new_num_tokens, *words, **more)
        predictions, size = self.cls.predictions, embedding.num_embeddings
        bias = predictions.bias.data[:size]
        predictions.bias = nn.Parameter(functional.pad(bias, (0, size - len(bias))))
        return embedding

    def scores(self, states: Tensor) -> Tensor:
        """MLM scores, shape (batch, length, vocabulary)."""
        return self.cls.predictions(states, self.get_input_embeddings().weight)


class OptBertForPreTraining(_Scoring):
    """Scores of masked tokens and of the next sentence."""

    outputs_class = BertForPreTrainingOutput
    reads_pooled = True

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        return_dict: bool | None = None,
        **more: bool | None,
    ) -> tuple | BertForPreTrainingOutput:
        inputs = input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds
        return self.headed(inputs, return_dict, more, labels, next_sentence_label)

    def scored(self, inner: Any, labels: Tensor | None, next_sentence_label: Tensor | None) -> dict[str, Any]:
        scores = self.scores(inner.last_hidden_state)
        following = self.cls.seq_relationship(inner.pooler_output)
        loss = token_loss(scores, labels)
        if loss is not None and next_sentence_label is not None:
            loss = loss + functional.cross_entropy(following, next_sentence_label.flatten())
        return {'loss': loss, 'prediction_logits': scores, 'seq_relationship_logits': following}


class OptBertForMaskedLM(_Scoring):
    """Scores of masked tokens."""

    _keys_to_ignore_on_load_unexpected = ['pooler', 'seq_relationship']  # those of pre-training
    outputs_class = MaskedLMOutput

    def scored(self, inner: Any, labels: Tensor | None) -> dict[str, Any]:
        scores = self.scores(inner.last_hidden_state)
        return {'loss': token_loss(scores, labels), 'logits': scores}


class _Classifying(_Headed):
    """A network with dropout and a dense layer for labels."""

    def add_head(self, config: OptBertConfig) -> None:
        rate = config.classifier_dropout
        self.dropout = nn.Dropout(config.hidden_dropout_prob if rate is None else rate)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)


class OptBertForSequenceClassification(_Classifying):
    """Scores of labels, or one value, from the pooled output."""

    outputs_class = SequenceClassifierOutput
    reads_pooled = True

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of the configuration's `problem_type`; without one the labels decide, as in BERT."""
        kind = self.config.problem_type
        if kind is None:
            several = 'multi_label' if labels.is_floating_point() else 'single_label'
            kind = 'regression' if self.num_labels == 1 else several + '_classification'
        if kind == 'regression':
            return functional.mse_loss(
                logits.squeeze(-1), labels.to(logits.dtype).reshape_as(logits.squeeze(-1))
            )
        if kind == 'single_label_classification':
            return functional.cross_entropy(logits, labels.flatten())
        return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))

    def scored(self, inner: Any, labels: Tensor | None) -> dict[str, Any]:
        logits = self.classifier(self.dropout(inner.pooler_output))
        return {'loss': None if labels is None else self.loss(logits, labels), 'logits': logits}


class OptBertForTokenClassification(_Classifying):
    """Scores of labels for every token."""

    _keys_to_ignore_on_load_unexpected = ['pooler']
    outputs_class = TokenClassifierOutput

    def scored(self, inner: Any, labels: Tensor | None) -> dict[str, Any]:
        logits = self.classifier(self.dropout(inner.last_hidden_state))
        return {'loss': token_loss(logits, labels), 'logits': logits}


class OptBertForQuestionAnswering(_Headed):
    """Scores of every token as the start and as the end of an answer."""

    _keys_to_ignore_on_load_unexpected = ['pooler']
    outputs_class = QuestionAnsweringModelOutput

    def add_head(self, config: OptBertConfig) -> None:
        self.qa_outputs = nn.Linear(config.hidden_size, 2)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        return_dict: bool | None = None,
        **more: bool | None,
    ) -> tuple | QuestionAnsweringModelOutput:
        inputs = input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds
        return self.headed(inputs, return_dict, more, start_positions, end_positions)

    def scored(
        self, inner: Any, start_positions: Tensor | None, end_positions: Tensor | None
    ) -> dict[str, Any]:
        scores = self.qa_outputs(inner.last_hidden_state)
        starts, ends = (scores[..., i].contiguous() for i in range(2))
        loss = None
        if start_positions is not None and end_positions is not None:
            length = starts.shape[1]  # an answer outside of the window has no loss
            losses = [
                functional.cross_entropy(one, places.flatten().clamp(0, length), ignore_index=length)
                for one, places in ((starts, start_positions), (ends, end_positions))
            ]
            loss = sum(losses) / 2
        return {'loss': loss, 'start_logits': starts, 'end_logits': ends}
