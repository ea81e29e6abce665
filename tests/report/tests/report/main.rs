mod sample;
