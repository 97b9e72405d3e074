# How Horovod and its Gloo are compiled: quickly, without symbols for a debugger. The loops that add gradients
# are still vectorised.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -fvect-cost-model=dynamic -DNDEBUG" CACHE STRING "")
