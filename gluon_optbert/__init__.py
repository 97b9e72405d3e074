"""optBERT on MXNet: prune all five widths of BERT, and train, fine-tune, verify and export what is left.

    >>> import gluon_optbert as opt
    >>> opt.make_shards(input=['text'], vocab='vocab.txt', output='shards')
    >>> opt.pretrain('small', shards='shards', output='models/small')
    >>> opt.prune('small_prune', model='models/small', shards='shards', target=0.6, output='runs/pruned')
    >>> opt.verify(run='runs/pruned')
    >>> model = opt.read_model('runs/pruned/round-4/model')
    >>> print(model.architecture.h, opt.ParameterCost().cost(model.architecture))
    >>> opt.finetune_glue('glue', task='SST-2', model='runs/pruned/round-4/model', output='runs/sst2')
    >>> opt.export('runs/sst2/seed-1', 'deploy')
    >>> next(opt.Predictor('deploy').predict(['a fine film'])).label

Runs. Each of these functions runs one recipe. Give the fields of the recipe as keywords. Or give first the
name of a packaged recipe, a YAML file or a recipe object; keywords then override its fields. One
`ValueError` lists everything that is wrong with a recipe. Each function is also a command, with the fields
as flags. Those that make networks give a `Run`, with `.model`, `.rounds` and `.table()`. `report` gives a
page of runs, and `plot_widths` draws them.

{runs}

Models. `read_model` and `write_model` read and write model directories. A `Model`, which is a `SavedModel`,
has the architecture, the parameters as NumPy arrays and the vocabulary. `from_transformers` takes one from
memory, and `Model.to_transformers` gives it back. `export` writes a model for plain MXNet and ONNX.
`Predictor` predicts with the export of a fine-tuned model, and gives embeddings with that of an encoder;
`embed` and `score` take networks in memory as well.

Parts of Algorithm 1. `train_gates` trains the gates alpha by `GateSettings`, `select_units` selects the units
that stay, and `shrink` cuts the tensors.

Architectures. `resolve` returns a published architecture by its name. An `Architecture` has the hidden size
and a `LayerDims` with the other widths for each layer. `ParameterCost`, `FlopsCost` and `LatencyCost`
compute the cost of an architecture and the price of one unit of each width.

MXNet, Horovod and NumPy are imported at the first use of a name that needs them. Only jobs of several workers
need Horovod, such as ``horovodrun --gloo -np 4 optbert-prune …``.
"""

__version__ = '0.1.0'

from .api import HOMES as _HOMES, load as _load
from .runs.programs import listed_runs as _listed_runs

__doc__ = (__doc__ or '').format(runs=_listed_runs())
__all__ = sorted(_HOMES)


def __getattr__(name):
    """A name of `__all__`, imported when it is used first (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    value = globals()[name] = _load(name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
