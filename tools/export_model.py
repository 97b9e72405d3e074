"""Export a model directory, for plain MXNet and on request as ONNX, or for another library: see --format."""

import sys

from gluon_optbert.commands.export import main

if __name__ == '__main__':
    sys.exit(main())
