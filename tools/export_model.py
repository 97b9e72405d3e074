"""Export a model directory as symbol and parameters that plain MXNet loads, in float32, int8 or bfloat16, and
as ONNX.
"""

import sys

from gluon_optbert.commands.export import main

if __name__ == '__main__':
    sys.exit(main())
