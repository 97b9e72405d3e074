"""Say where the time of an exported network goes: its operators by time, and the matrix products beside the
machine's ceiling.

MXNet's profiler times every operator of some passes, which are taken one operator at a time. The ceiling is
what one large FullyConnected reaches in the same process. Nothing else should run meanwhile."""

from __future__ import annotations

import gluon_optbert  # noqa: F401  before MXNet, which reads its settings while it is loaded

# isort: split
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List

# read at the import; else many operators are one row
os.environ.setdefault('MXNET_EXEC_BULK_EXEC_INFERENCE', '0')
import mxnet as mx
import numpy as np

from gluon_optbert.architecture.cost import count_flops
from gluon_optbert.deployment.mxnet_network import load_deployment
from gluon_optbert.network.running import feed_of, random_feed
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import refuse_existing, write_file
from gluon_optbert.runs.machine import origin_here
from gluon_optbert.runs.recipe import Recipe, option, to_dict

PRODUCTS = ('FullyConnected', 'dot', 'batch_dot', '_sg_mkldnn_fully_connected')
WARM = 2  # passes before the profiler is on
CEILING_SHAPE = (1024, 768, 3072)  # rows, inputs, outputs


class ProfileRecipe(Recipe):
    """What is profiled."""

    deployment: Path = option('deployment directory')
    batch: int = option('sequences', 1)
    length: int = option('tokens of a sequence', 128)
    repeats: int = option('passes', 10)
    output: Path | None = option('JSON file to write', None)

    def problems(self) -> list[str]:
        """What is out of range."""
        return [
            f'{name} must be at least 1, found {getattr(self, name)}'
            for name in ('batch', 'length', 'repeats')
            if getattr(self, name) < 1
        ]


def ceiling_gflops(repeats: int = 15) -> float:
    """Thousand millions of operations a second of one large float32 product, the fastest of some."""
    rows, inputs, outputs = CEILING_SHAPE
    data, weight = mx.nd.ones((rows, inputs)), mx.nd.ones((outputs, inputs))
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        mx.nd.FullyConnected(data, weight, no_bias=True, num_hidden=outputs).wait_to_read()
        times.append(time.perf_counter() - began)
    return 2e-9 * rows * inputs * outputs / min(times)


def operators(block: Any, inputs: List[mx.nd.NDArray], repeats: int) -> Dict[str, Dict[str, float]]:
    """Milliseconds and calls of one pass by operator, the slowest first, and of the whole as ``pass``."""

    def passes(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            block(*inputs)
            mx.nd.waitall()
        return 1e3 * (time.perf_counter() - began) / count

    passes(WARM)
    # The trace goes into a file that is thrown away. MXNet replaces the file: as root, even a device.
    with tempfile.TemporaryDirectory() as directory:
        trace = os.path.join(directory, 'trace.json')
        mx.profiler.set_config(profile_all=True, aggregate_stats=True, filename=trace)
        mx.profiler.set_state('run')
        whole = passes(repeats)
        mx.profiler.set_state('stop')
        rows = json.loads(mx.profiler.dumps(reset=True, format='json'))['Time']['operator']
    by_operator = {
        name: {'ms': row['Total'] / repeats, 'calls': row['Count'] / repeats} for name, row in rows.items()
    }
    return {
        'pass': {'ms': whole, 'calls': 1},
        **dict(sorted(by_operator.items(), key=lambda item: -item[1]['ms'])),
    }


@command
def main(argv=None):
    """Profile, and print the table."""
    recipe = parse(
        ProfileRecipe,
        argv,
        description=__doc__,
        positional='deployment',
        example='python tools/profile_export.py deploy --batch 8',
    )
    if recipe.output:
        refuse_existing(recipe.output)
    block, deployment = load_deployment(recipe.deployment)
    if recipe.length > deployment.architecture.max_length:
        raise ValueError(f'length: at most {deployment.architecture.max_length} tokens')
    feed = random_feed(deployment.architecture, batch=recipe.batch, length=recipe.length)
    feed['valid_length'] = np.full(recipe.batch, recipe.length)
    rows = operators(block, list(feed_of(feed, deployment.inputs).values()), recipe.repeats)
    whole = rows.pop('pass')['ms']
    products = sum(row['ms'] for name, row in rows.items() if name in PRODUCTS)
    gflop = recipe.batch * sum(count_flops(deployment.architecture, recipe.length).values()) / 1e9
    ceiling = ceiling_gflops()
    cells = [
        (name, f'{row["calls"]:.0f}', f'{row["ms"]:.2f}', f'{row["ms"] / whole:.1%}')
        for name, row in rows.items()
        if row['ms'] >= 0.001 * whole
    ]
    print(markdown_table(['operator', 'calls', 'ms', 'share'], cells))
    print(
        f'\n{recipe.batch}x{recipe.length} tokens in {deployment.precision}: {whole:.2f} ms, '
        f'{1 - products / whole:.1%} of it '
        f'outside the matrix products\nthe products: {gflop:.2f} GFLOP of the encoder in {products:.2f} ms, '
        f'{1e3 * gflop / products:.0f} GFLOP/s; one large float32 product reaches {ceiling:.0f} GFLOP/s'
    )
    if recipe.output:
        write_file(
            recipe.output,
            (
                json.dumps(
                    {
                        'recipe': to_dict(recipe),
                        'precision': deployment.precision,
                        'pass_ms': whole,
                        'products_ms': products,
                        'gflop': gflop,
                        'ceiling_gflops': ceiling,
                        'operators': rows,
                        **origin_here(),
                    },
                    indent=1,
                )
                + '\n'
            ).encode(),
        )
        print(f'wrote {recipe.output}')


if __name__ == '__main__':
    sys.exit(main())
