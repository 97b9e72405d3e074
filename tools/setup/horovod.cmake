# How Horovod and its Gloo are compiled: quickly, without symbols for a debugger. The loops that add gradients
# are still vectorised. Horovod's sources are compiled several at a time, so that their headers are read once;
# those of Gloo do not allow it (this file is read again when their part begins), and with CUDA it was not tried.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -fvect-cost-model=dynamic -DNDEBUG" CACHE STRING "")
set(CMAKE_PROJECT_gloo_INCLUDE ${CMAKE_CURRENT_LIST_FILE})
if(PROJECT_NAME STREQUAL gloo OR DEFINED ENV{HOROVOD_CUDA_HOME})
    set(CMAKE_UNITY_BUILD OFF)
else()
    set(CMAKE_UNITY_BUILD ON)
endif()
