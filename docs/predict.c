/* Prints the states of four tokens, from the export in deploy/. Set PACKAGE to the directory of the installed
   mxnet: gcc predict.c -o predict -I $PACKAGE/include -L $PACKAGE -lmxnet -Wl,-rpath,$PACKAGE */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <mxnet/c_api.h>
#include <mxnet/c_predict_api.h>

static char *content(const char *path, long *size) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) || (*size = ftell(file)) < 0) { perror(path); exit(2); }
    rewind(file);
    char *bytes = calloc(*size + 1, 1);
    if (fread(bytes, 1, *size, file) != (size_t)*size) { perror(path); exit(2); }
    fclose(file);
    return bytes;
}

static void check(int status) {
    if (status) { fprintf(stderr, "%s\n", MXGetLastError()); exit(1); }
}

int main(void) {
    long symbol_size, size;
    char *symbol = content("deploy/model-symbol.json", &symbol_size);
    char *parameters = content("deploy/model-0000.params", &size);
    const char *names[] = {"input_ids", "token_types", "valid_length"};
    /* shapes (1, 4), (1, 4) and (1) */
    const uint32_t sides[] = {1, 4, 1, 4, 1}, ends[] = {0, 2, 4, 5};
    const float ids[] = {2, 5, 7, 3}, types[] = {0, 0, 0, 0}, length[] = {4};
    PredictorHandle network;
    check(MXPredCreate(symbol, parameters, (int)size, 1, 0, 3, names, ends, sides, &network));
    check(MXPredSetInput(network, "input_ids", ids, 4));
    check(MXPredSetInput(network, "token_types", types, 4));
    check(MXPredSetInput(network, "valid_length", length, 1));
    check(MXPredForward(network));
    uint32_t *shape, sides_out, count = 1;
    check(MXPredGetOutputShape(network, 0, &shape, &sides_out));
    for (uint32_t i = 0; i < sides_out; i++) count *= shape[i];
    float *encoded = malloc(count * sizeof *encoded);
    check(MXPredGetOutput(network, 0, encoded, count));
    for (uint32_t i = 0; i < count; i++) printf("%.9g\n", encoded[i]);
    check(MXPredFree(network));
    return MXNDArrayWaitAll();  /* MXNet's threads free the operators; they must not outlive main */
}
