/* The C interface of MXNet on an export: predict SYMBOL PARAMETERS FEED BATCH LENGTH > outputs
 * FEED has ids, types (both BATCH x LENGTH) and lengths (BATCH) as float32; outputs are float32 as well. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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

int main(int count, char **words) {
    if (count != 6) { fprintf(stderr, "predict SYMBOL PARAMETERS FEED BATCH LENGTH\n"); return 2; }
    long symbol_size, size, feed_size;
    char *symbol = content(words[1], &symbol_size), *parameters = content(words[2], &size);
    const float *feed = (const float *)content(words[3], &feed_size);
    const uint32_t batch = atoi(words[4]), length = atoi(words[5]), cells = batch * length;
    const char *names[] = {"input_ids", "token_types", "valid_length"};
    const uint32_t sides[] = {batch, length, batch, length, batch}, ends[] = {0, 2, 4, 5};
    PredictorHandle network;
    check(MXPredCreate(symbol, parameters, (int)size, 1, 0, 3, names, ends, sides, &network));
    check(MXPredSetInput(network, "input_ids", feed, cells));
    check(MXPredSetInput(network, "token_types", feed + cells, cells));
    check(MXPredSetInput(network, "valid_length", feed + 2 * cells, batch));
    check(MXPredForward(network));
    uint32_t *shape, side_count, numbers = 1;
    check(MXPredGetOutputShape(network, 0, &shape, &side_count));
    for (uint32_t i = 0; i < side_count; i++) numbers *= shape[i];
    float *outputs = malloc(numbers * sizeof *outputs);
    check(MXPredGetOutput(network, 0, outputs, numbers));
    fwrite(outputs, sizeof *outputs, numbers, stdout);
    return MXPredFree(network);
}
