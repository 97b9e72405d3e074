"""A writer of an output is refused one that another process is writing, and changes nothing."""

import pytest
from helpers.pretrained import recipe_for as pretraining_recipe
from helpers.pruned import recipe_for as pruning_recipe
from helpers.tiny import contents, saved_model

import gluon_optbert as opt
from gluon_optbert.commands import found
from gluon_optbert.commands.predicting import embed
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.runs.files import InUse, lock_file, locked
from gluon_optbert.training.pretrain import pretrain


def command_of(name, *words):
    """Run a command whose refusal is raised."""
    found(name).__wrapped__([str(word) for word in words])


WRITERS = {
    'pretrain': lambda shards, model, output: pretrain(pretraining_recipe(shards, output)),
    'prune': lambda shards, model, output: prune(pruning_recipe(shards, model, output)),
    'resume': lambda shards, model, output: prune(pruning_recipe(shards, model, output, resume=True)),
    'make_shards': lambda shards, model, output: opt.make_shards(
        input='text', vocab=shards / 'vocab.txt', output=output
    ),
    'import': lambda shards, model, output: opt.import_checkpoint(source='checkpoint', output=output),
    'trim': lambda shards, model, output: opt.trim_vocabulary(model=model, text='text', output=output),
    'export': lambda shards, model, output: opt.export(saved_model(), output),
    'report': lambda shards, model, output: command_of('report', model, '--output', output),
    'embed': lambda shards, model, output: embed(None, None, output),
    'prune a task': lambda shards, model, output: opt.prune_task(model=model, data='glue', output=output),
    'finetune': lambda shards, model, output: opt.finetune_glue(
        task='RTE', model=model, data='glue', output=output
    ),
}


@pytest.mark.parametrize('writer', WRITERS)
def test_output_that_another_process_writes_is_refused(shards_directory, model_directory, tmp_path, writer):
    output = tmp_path / 'output'
    with locked(output):
        before = contents(tmp_path)
        with pytest.raises(InUse, match='output: process .* is writing it; wait until it has ended'):
            WRITERS[writer](shards_directory, model_directory, output)
        assert contents(tmp_path) == before and lock_file(output).exists()
