# Compiler rules of every target: C++20, warnings as errors, and no contraction of a*b+c behind our back:
# a fused multiply-add is written where it is meant (ARCHITECTURE.md, Exactness).
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g1")

find_program(QUERN_CCACHE ccache)
if(QUERN_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${QUERN_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${QUERN_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${QUERN_CCACHE})
endif()

add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra> $<$<COMPILE_LANGUAGE:CXX>:-Werror>
                    $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off> $<$<COMPILE_LANGUAGE:C>:-ffp-contract=off>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # libstdc++ 12's own stable_sort uses what it marks as deprecated, and clang blames the caller.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-deprecated-declarations>)
endif()
if(QUERN_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX,C>:-fsanitize=${QUERN_SANITIZE}> $<$<COMPILE_LANGUAGE:CXX,C>:-fno-sanitize-recover=all>
                      $<$<COMPILE_LANGUAGE:CXX,C>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${QUERN_SANITIZE})
  # Checks take most of the time whatever the optimiser does, and instrumented code compiles twice as fast at -O1.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
  set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1 -g1")
endif()
