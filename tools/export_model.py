"""Export a model directory for plain MXNet, in float32, int8 or bfloat16, and on request as ONNX."""

import sys

from gluon_optbert.commands.export import main

if __name__ == '__main__':
    sys.exit(main())
